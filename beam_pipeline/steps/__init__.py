"""The pipeline's steps as Beam's DoFns: thin, over functions that know nothing of Beam.

Elements between steps are blocks of rows as bytes, never single documents or rows; no output depends on how
the runner bundles elements. Each DoFn holds only the job, small and picklable; heavy state is made in `setup`.
"""
