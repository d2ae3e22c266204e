# Words for ./dev, where everything is.
.DEFAULT_GOAL := help
.NOTPARALLEL:

COMMANDS := demo test lint format bench prove docs lock servers kafka clean help
.PHONY: $(COMMANDS)

$(COMMANDS):
	@./dev $@ $(ARGS)
