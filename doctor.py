"""Report what can run on this machine and what cannot, each problem with its fix.

    make doctor

Standard library only, so that it works before anything is installed. bench/doctor.py does it; `make all` calls it, too.
"""

import sys

from bench import processes
from bench.doctor import examine

if __name__ == "__main__":
    sys.exit(processes.run_script(examine))
