"""What any program needs: files, errors, locks, the console, progress, pages."""
