"""Object stores of several clouds as a tier, through the library obstore."""
