"""Running a plan: the first run, targets, results held to the signature, ``out=``, faults and quarantine."""
