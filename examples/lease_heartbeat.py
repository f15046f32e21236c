"""A lease that the client renews, not whoever reads for it. python examples/lease_heartbeat.py MODEL [DEVICE]"""

import sys
import time

import boundedgen as b


def begin(pipeline: b.BoundedPipeline, user: str, ttl: float = 15) -> str:
    """POST /sessions: the id is a bearer token."""
    return pipeline.lease(user, ttl=ttl).id


def heartbeat(pipeline: b.BoundedPipeline, lease_id: str, user: str) -> int:
    """POST /sessions/ID/heartbeat, every few seconds."""
    try:
        pipeline.renew(lease_id, owner=user)
    except b.LeaseExpired as error:
        return error.http_status_hint  # 410: over, unknown and another owner's look alike
    return 204


def ask(pipeline: b.BoundedPipeline, lease_id: str, question: str) -> b.Generation:
    """Ends LeaseLost once the heartbeats have stopped for the lease's ttl, whoever goes on reading."""
    return pipeline.submit(question, lease=lease_id, apply_chat_template=True, max_new_tokens=2000, ignore_eos=True)


# --- try it ----------------------------------------------------------------------------------------------------------


def main(model: str, device: str = "CPU") -> None:
    with b.BoundedPipeline(model, {"num_kv_blocks": 256}, device) as pipeline:
        lease_id = begin(pipeline, "me", ttl=0.5)
        print(
            "heartbeat:", heartbeat(pipeline, lease_id, "me"), "of somebody else:", heartbeat(pipeline, lease_id, "you")
        )
        generation = ask(pipeline, lease_id, "Tell me a long story.")
        try:
            for _ in generation:  # a proxy, which reads into the void
                pass
        except b.LeaseLost as error:
            print(f"{error}; {generation.wait_reclaimed(timeout=10)}")
        time.sleep(0.1)
        print("heartbeat:", heartbeat(pipeline, lease_id, "me"))


if __name__ == "__main__":
    main(*sys.argv[1:])
