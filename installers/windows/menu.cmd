@echo off
rem Behind every entry of the Start menu: run one command of code-memory, keep the window open.
title code-memory
chcp 65001 >nul
"%~dp0code-memory.exe" %*
echo.
pause
