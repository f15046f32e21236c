"""A client that tries again as it should. python examples/retries.py MODEL [DEVICE]"""

import sys

import boundedgen as b

BUDGET = b.RetryBudget(ratio=0.1)  # one for all calls to a lane: retries are at most a tenth of them, and ten more


def ask(pipeline: b.BoundedPipeline, user: str, job: str, question: str, within: float) -> str:
    """The answer, or the last error, after `within` seconds at the latest."""
    for attempt in b.retrying(total=within, budget=BUDGET):
        with attempt:
            answer = pipeline.generate(
                question,
                max_new_tokens=20,
                bounds=b.Bounds(total=attempt.remaining_s),
                owner=user,
                label=job,
                supersede=True,  # of an earlier try that is still there, be it of a process that was restarted
            )
            return f"attempt {attempt.number}: {answer.text!r}"
    raise AssertionError("the last attempt has an answer or an error")


# --- try it ----------------------------------------------------------------------------------------------------------


def main(model: str, device: str = "CPU") -> None:
    limits = b.Limits(running_max=1, waiting_max=1)
    with b.BoundedPipeline(model, {"num_kv_blocks": 64}, device, limits=limits) as pipeline:
        full = [pipeline.submit("x", max_new_tokens=1000, ignore_eos=True, bounds=b.Bounds(total=0.2))]
        stream = iter(full[0])
        next(stream)  # it runs
        full.append(pipeline.submit("x", max_new_tokens=1000, ignore_eos=True, bounds=b.Bounds(total=0.2)))
        print(ask(pipeline, "me", "greeting", "Hello", within=20))
        print(f"{BUDGET}, {pipeline.stats().rejected_total['Saturated']} refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
