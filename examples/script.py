"""A script: one question, bounded. python examples/script.py MODEL [DEVICE]"""

import sys

import boundedgen as b


def answer(model: str, device: str, question: str, within: float) -> str:
    """The answer, or as much of it as there is after `within` seconds."""
    with b.BoundedPipeline(model, {"num_kv_blocks": 256}, device) as pipeline:
        try:
            messages = [{"role": "user", "content": question}]
            return pipeline.generate(messages, max_new_tokens=200, bounds=b.Bounds(total=within)).text
        except b.DeadlineExceeded as error:
            return f"{error.partial.text if error.partial else ''} … ({error})"


# --- try it ----------------------------------------------------------------------------------------------------------

if __name__ == "__main__":
    model, device = (*sys.argv[1:], "CPU")[:2]
    print(answer(model, device, "What is a lighthouse for?", within=20))
