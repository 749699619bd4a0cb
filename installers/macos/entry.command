#!/bin/sh
# A double-click in Finder runs this in a Terminal window, which stays open until it was read.
# build_macos.py writes one such file for each entry; COMMAND is the entry's word.
main() {
    clear
    "$HOME/Library/Application Support/code-memory/code-memory" COMMAND
    printf '\nPress Return to close this window. '
    read -r _
}
main
exit
