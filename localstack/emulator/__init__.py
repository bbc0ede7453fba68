"""AWS on one machine, without Docker: the emulators, the gate in front of them, and the `stack` command."""
