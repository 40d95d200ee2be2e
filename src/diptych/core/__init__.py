"""The words of the domain. Standard library only."""
