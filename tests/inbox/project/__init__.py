"""A small Django project, run by Django's own test runner from `test_django`."""
