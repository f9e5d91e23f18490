"""Add STEP_SLEEP seconds to each step of a benchmark: Python imports this at its start if it is in PYTHONPATH."""

import os
import time
from dataclasses import replace

from bench.timing import measure


class SleepingSession:
    """A session whose steps sleep first."""

    def __init__(self, session):
        self.session = session

    def __getattr__(self, name):
        return getattr(self.session, name)

    def step(self):
        time.sleep(float(os.environ["STEP_SLEEP"]))
        self.session.step()


measure_awake = measure.measure
measure.measure = lambda job: measure_awake(replace(job, session=SleepingSession(job.session)))
