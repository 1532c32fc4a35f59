"""What a person sees: the leader board, the live table of a run, plain lines."""
