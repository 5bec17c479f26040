"""From settings to a trained model: arithmetic, hardware, sessions, hooks, the run itself."""
