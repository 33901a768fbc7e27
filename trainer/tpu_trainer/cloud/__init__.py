"""Training on TPUs of Google Cloud: what `launch` asks for, and what runs on each host."""
