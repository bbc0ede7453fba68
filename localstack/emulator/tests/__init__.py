"""Unit tests of the gate, the plugin's pure parts and the stack. `../check` runs them."""
