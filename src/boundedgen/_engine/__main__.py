"""`python -m boundedgen._engine`: the engine process. Started by `_host` only."""

from boundedgen._engine._child import main
from boundedgen._engine._genai import load

if __name__ == "__main__":
    main(load)
