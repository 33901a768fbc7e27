"""The pipeline's steps: thin Beam DoFns that wrap functions that do not depend on Beam.

Elements between steps are work units, blocks of rows and tails, never single documents or rows. They have the types in
the signatures, and are pickled as the raw bytes of their arrays. No output depends on how the runner bundles elements.
Each DoFn holds only the job, which is small and picklable; `setup` creates heavy state.
"""
