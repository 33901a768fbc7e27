"""Running on Dataflow: which options a job needs, submitting it, following it, and its Flex Template."""
