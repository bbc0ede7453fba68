"""Times Nightshift beside what a user would run instead, on the same files and cores. `run --help` has the verbs."""
