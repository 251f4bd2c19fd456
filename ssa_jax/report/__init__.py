"""What a run leaves behind: the run folder, the progress line, pictures, tables, report.html."""
