"""What tosica is measured by; each module is run with one command from the repository's root."""
