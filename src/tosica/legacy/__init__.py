"""Read the folder that the original code leaves after training."""
