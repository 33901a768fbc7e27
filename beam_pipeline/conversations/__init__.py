"""Conversations → text by a chat template → token ids, and which tokens are targets of the loss."""
