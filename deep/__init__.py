"""Runs that take longer than a test may: `nox -l` lists the sessions that start them."""
