"""Starting and ending a job's processes; runs without torch."""
