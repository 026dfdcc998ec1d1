"""Progress, tables and run logs from plain records."""
