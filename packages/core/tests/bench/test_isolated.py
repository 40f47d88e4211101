"""Processes that run jobs: what they do when whoever gives the jobs is gone."""

import multiprocessing

from opmux.bench import isolated


def test_a_process_ends_quietly_when_whoever_gave_its_job_is_gone() -> None:
    mine, theirs = multiprocessing.Pipe()

    def job() -> str:
        mine.close()  # as if the other process had been killed
        return "done"

    mine.send(())
    isolated._serve(theirs, job)
    isolated._parent.remove(theirs)
    theirs.close()
