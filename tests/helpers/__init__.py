"""Functions that the tests of several packages use: runs, records, trainings, studies, machines, pages."""
