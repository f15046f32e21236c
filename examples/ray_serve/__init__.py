"""Lanes on many machines, with Ray Serve. docs/ray-serve.md.

    pip install ".[ray]"        # in a checkout
    python -m examples.ray_serve MODEL --device CPU --lanes 2

lane.py a deployment whose replicas each own a pipeline · routing.py which of them a call goes to · scaling.py how many
there are · fleet.py what callers hold · application.py all of it
"""
