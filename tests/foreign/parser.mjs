// The npm package `eventsource-parser` over fetch, as people write it: comes back with the last id until 204.
import { createParser } from 'eventsource-parser'

const [url, most] = [process.argv[2], Number(process.argv[3] ?? 20)]
let last = process.argv[4] ?? ''
const parser = () =>
  createParser({
    onEvent: (event) => {
      if (event.id !== undefined) last = event.id
      console.log(JSON.stringify({ type: event.event ?? 'message', id: event.id ?? null, data: event.data }))
    },
  })

for (let attempt = 0; attempt < most; attempt++) {
  try {
    const answer = await fetch(url, { headers: last ? { 'Last-Event-ID': last } : {} })
    console.log(JSON.stringify({ type: 'status', status: answer.status }))
    if (answer.status !== 200) break
    const feed = parser()
    const decoder = new TextDecoder()
    for await (const chunk of answer.body) feed.feed(decoder.decode(chunk, { stream: true }))
  } catch (error) {
    console.log(JSON.stringify({ type: 'broken', message: String(error) }))
  }
}
