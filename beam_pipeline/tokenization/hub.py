"""A tokenizer's way to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.utils import validate_repo_id

from beam_pipeline.errors import DataError, UsageError


def check_repo(repo: str) -> None:
    """Checks a repository's name.

    Raises:
      UsageError: where it is none that the hub could have.
    """
    try:
        validate_repo_id(repo)
    except ValueError as error:
        raise UsageError(f"--push_to_hub {repo}: {error}") from error


def push(files: Mapping[str, bytes], repo: str, *, place: str) -> str:
    """Commits a tokenizer's files to a model repository, which is made where it is missing.

    The hub's address and the token are those of this environment, as the hub's client finds them.

    Args:
      files: by name.
      repo: `name` or `organisation/name`.
      place: where the files lie, for the error.

    Returns:
      The commit's URL.

    Raises:
      DataError: where the hub cannot be reached or refuses. The files themselves are finished then.
    """
    api = HfApi()
    try:
        found = api.create_repo(repo, exist_ok=True)
        operations = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=data)
            for name, data in sorted(files.items())
        ]
        commit = api.create_commit(found.repo_id, operations, commit_message="Add tokenizer")
    # The client's own errors are among these, as are those of the network and of a missing login.
    except (OSError, ValueError) as error:
        raise DataError(
            f"--push_to_hub {repo}: {str(error).strip().splitlines()[0]}; the tokenizer itself is finished: {place}; "
            "to push it, run the same command with --resume"
        ) from error
    return commit.commit_url
