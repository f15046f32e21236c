"""`python -m boundedgen top`: lanes, live, in a terminal. Reading, judging, drawing and the terminal are kept apart."""
