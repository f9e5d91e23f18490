"""Pictures and tables of what lies in results/: rows become results/plots/*.png and results/README.md.

    make plot
"""

import sys

from bench.plots.pictures import main

if __name__ == "__main__":
    sys.exit(main())
