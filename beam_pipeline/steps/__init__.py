"""The pipeline's steps as Beam's DoFns: thin, over functions that know nothing of Beam.

Elements between steps are work units, blocks of rows and tails, never single documents or rows. They travel as the
types that the signatures name, and are pickled as the raw bytes of their arrays. No output depends on how the runner
bundles elements. Each DoFn holds only the job, small and picklable; heavy state is made in `setup`.
"""
