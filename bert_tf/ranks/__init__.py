"""Many ranks as one job: what they send, agree on and watch of each other."""
