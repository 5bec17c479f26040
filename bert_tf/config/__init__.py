"""What a run is told: the model's architecture and the run's settings."""
