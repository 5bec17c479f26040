"""Many ranks as one job: how they are joined, what they send and what they agree on."""
