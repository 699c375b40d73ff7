"""The files of a new study, ``atoll new study``: a participant, a job, statistics, a first model, a test, a README."""
