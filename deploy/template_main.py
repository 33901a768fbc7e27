"""Entry point of the Flex Template's launcher, set as FLEX_TEMPLATE_PYTHON_PY_FILE in deploy/pipeline.Dockerfile."""

import sys

from beam_pipeline.flex_template import launch

if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
