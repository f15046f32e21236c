"""The engine process: `_host` runs it, by way of `_start`."""

from boundedgen._engine._child import main
from boundedgen._engine._genai import load

if __name__ == "__main__":
    main(load)
