"""Pushing a tokenizer to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping

from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.tokenization.folder_files import first_line


def check_repo(repo: str) -> None:
    """Checks the name of a repository.

    Raises:
        UsageError: If the hub does not allow this name.
    """
    from huggingface_hub.utils import validate_repo_id  # half a second to import, and hardly any run pushes

    try:
        validate_repo_id(repo)
    except ValueError as error:
        raise UsageError(f"--push_to_hub {repo}: {error}") from error


def push(files: Mapping[str, bytes], repo: str, *, place: str) -> str:
    """Commits a tokenizer's files to a model repository, which is created if necessary.

    The hub's client takes the hub's address and the token from the environment.

    Returns:
        The commit's URL.

    Raises:
        DataError: If the hub cannot be reached or refuses the commit. The files themselves are finished.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    try:
        created = api.create_repo(repo, exist_ok=True)
        operations = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=data)
            for name, data in sorted(files.items())
        ]
        commit = api.create_commit(created.repo_id, operations, commit_message="Add tokenizer")
    # The client's own errors, a missing login, and network errors: those of the library that its release uses.
    except Exception as error:
        raise DataError(
            f"--push_to_hub {repo}: {first_line(error)}; the tokenizer itself is finished, in "
            f"{place}; to push it, run the same command with --resume"
        ) from error
    return commit.commit_url
