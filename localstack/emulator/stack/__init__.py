"""The `stack` command: an emulator, the infrastructure in it, the gate, an API key and a worker."""
