"""`python -m boundedgen doctor`: what a lane needs, what is there of it, and what to do about the rest."""
