"""`python -m replaylog.cli`."""

from replaylog.cli import main

if __name__ == "__main__":
    main()
