"""An OpenAI-compatible server on Starlette and uvicorn, in which every generation ends. docs/openai-server.md.

    pip install ".[openai-server]"        # in a checkout
    python -m examples.openai_server MODEL --device CPU --port 8000

settings.py what is served · requests.py, fields.py, messages.py, bounding.py what is asked, checked · answering.py,
choices.py, shapes.py, tool_calls.py, token_texts.py the answer · problems.py errors · leases.py · looking.py probes and
metrics · lane.py what they share · app.py all of it · serving.py the process
"""
