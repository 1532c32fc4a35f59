"""What the tests of several packages share: runs, records, trainings, studies, machines, pages."""
