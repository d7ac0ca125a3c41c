"""`bench eval`: quality on lm-eval's tasks."""
