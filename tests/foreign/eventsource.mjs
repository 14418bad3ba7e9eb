// The npm package `eventsource` as a program: reports each event as a line of JSON until it is closed for good.
import { EventSource } from 'eventsource'

const kinds = ['message', 'progress', 'replay', 'replay-caught-up', 'replay-end', 'replay-refused']
const stream = new EventSource(process.argv[2])
const say = (what) => console.log(JSON.stringify(what))
for (const type of kinds) {
  stream.addEventListener(type, (event) => say({ type, id: event.lastEventId, data: event.data }))
}
stream.addEventListener('error', (error) => {
  say({ type: 'error', code: error.code ?? null, state: stream.readyState })
  if (stream.readyState === EventSource.CLOSED) process.exit(0)
})
