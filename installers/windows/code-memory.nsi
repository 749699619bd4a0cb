; The Windows installer: one person's program, no administrator. build_windows.py compiles it.
;
;   files     %LOCALAPPDATA%\Programs\code-memory
;   registry  HKCU\...\Uninstall\code-memory         (the entry in Apps & features)
;   menu      Start menu\code-memory                 (browse, check, forget, remove)
;   last      code-memory.exe mcp install            (its words are kept in install.log)
;
; The memories in %USERPROFILE%\.claude-code\memory are the person's: nothing here touches them.
;
; With /S nothing is asked or shown. Exit codes: 0 done; 1 cancelled; 2 files stay in use, what
; was there is still there; 3 installed, but Claude Desktop could not be set up (see install.log).
;
; Defined by build_windows.py: VERSION, PAYLOAD (the onedir folder), ICON, OUT, SIZE_KB; SIGN if there is
; a command that signs the file named in its place of %1.

Unicode true
Target amd64-unicode
ManifestDPIAware true
ManifestSupportedOS all
RequestExecutionLevel user
!ifdef QUICK
  SetCompressor zlib
!else
  SetCompressor /SOLID lzma
  SetCompressorDictSize 64
!endif

!include MUI2.nsh
!include LogicLib.nsh

!define PROGRAM "code-memory"
!define EXE "code-memory.exe"
!define UNINSTALL_KEY "Software\Microsoft\Windows\CurrentVersion\Uninstall\${PROGRAM}"

Name "${PROGRAM}"
OutFile "${OUT}"
InstallDir "$LOCALAPPDATA\Programs\${PROGRAM}"
BrandingText "${PROGRAM} ${VERSION}"
ShowInstDetails nevershow
ShowUninstDetails nevershow

VIProductVersion "${VERSION}.0"
VIFileVersion "${VERSION}.0"
VIAddVersionKey /LANG=0 ProductName "${PROGRAM}"
VIAddVersionKey /LANG=0 ProductVersion "${VERSION}"
VIAddVersionKey /LANG=0 FileVersion "${VERSION}"
VIAddVersionKey /LANG=0 FileDescription "${PROGRAM} installer"
VIAddVersionKey /LANG=0 CompanyName "${PROGRAM} contributors"
VIAddVersionKey /LANG=0 LegalCopyright "MIT licence"

!ifdef SIGN
  !finalize '${SIGN}'
  !uninstfinalize '${SIGN}'
!endif

; === Pages ====================================================================

!define MUI_ICON "${ICON}"
!define MUI_UNICON "${ICON}"

Var OutcomeTitle
Var OutcomeText

!define MUI_WELCOMEPAGE_TEXT "$(WELCOME_TEXT)"
!insertmacro MUI_PAGE_WELCOME
!insertmacro MUI_PAGE_INSTFILES
!define MUI_FINISHPAGE_TITLE "$OutcomeTitle"
!define MUI_FINISHPAGE_TEXT "$OutcomeText"
!define MUI_FINISHPAGE_TEXT_LARGE
!define MUI_FINISHPAGE_SHOWREADME "$INSTDIR\install.log"
!define MUI_FINISHPAGE_SHOWREADME_TEXT "$(SHOW_REPORT)"
!define MUI_FINISHPAGE_SHOWREADME_NOTCHECKED
!insertmacro MUI_PAGE_FINISH

!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES

; The first language is used where none of them is the person's.
!insertmacro MUI_LANGUAGE English
!insertmacro MUI_LANGUAGE Korean
!insertmacro MUI_LANGUAGE Japanese
!insertmacro MUI_LANGUAGE SimpChinese
!include text.nsh

; === Our own processes ========================================================
;
; A server that Claude Desktop started holds the program's files open. Every process whose program
; lies below the install folder is ours and is ended; no other is touched, least of all Claude.

!macro END_OWN_PROCESSES_FUNCTION UN
Function ${UN}EndOwnProcesses
  Push $0
  Push $1
  Push $2
  Push $3
  Push $4
  Push $5
  Push $6
  Push $7
  Push $8
  ; The folder with a backslash after it, in its long form, and its length
  System::Call 'kernel32::GetLongPathNameW(w "$INSTDIR", w .r7, i ${NSIS_MAX_STRLEN}) i .r0'
  ${If} $0 = 0
    StrCpy $7 $INSTDIR
  ${EndIf}
  StrCpy $7 "$7\"
  StrLen $8 $7
  System::Call 'kernel32::GetCurrentProcessId() i .r6'
  System::Alloc 65536
  Pop $0
  System::Call 'kernel32::K32EnumProcesses(p r0, i 65536, *i .r1) i .r2'
  ${If} $2 = 0
    StrCpy $1 0
  ${EndIf}
  IntOp $1 $1 / 4
  StrCpy $2 0
  ${While} $2 < $1
    IntOp $3 $2 * 4
    IntPtrOp $3 $0 + $3
    System::Call '*$3(i .r4)'
    IntOp $2 $2 + 1
    ${If} $4 = $6
      ${Continue}
    ${EndIf}
    ; PROCESS_QUERY_LIMITED_INFORMATION | SYNCHRONIZE | PROCESS_TERMINATE
    System::Call 'kernel32::OpenProcess(i 0x101001, i 0, i r4) p .r3'
    ${If} $3 P<> 0
      StrCpy $5 ""
      System::Call 'kernel32::QueryFullProcessImageNameW(p r3, i 0, w .r5, *i ${NSIS_MAX_STRLEN}) i .r4'
      StrCpy $5 $5 $8
      ${If} $5 == $7 ; == does not mind upper and lower case
        System::Call 'kernel32::TerminateProcess(p r3, i 1)'
        System::Call 'kernel32::WaitForSingleObject(p r3, i 5000)'
      ${EndIf}
      System::Call 'kernel32::CloseHandle(p r3)'
    ${EndIf}
  ${EndWhile}
  System::Free $0
  Pop $8
  Pop $7
  Pop $6
  Pop $5
  Pop $4
  Pop $3
  Pop $2
  Pop $1
  Pop $0
FunctionEnd
!macroend
!insertmacro END_OWN_PROCESSES_FUNCTION ""
!insertmacro END_OWN_PROCESSES_FUNCTION "un."

; End them and clear the program's files away, again for as long as a client starts the server anew;
; then ask for help, or give up when silent. Windows refuses to rename a folder in which a file is
; open, so `_internal` goes as a whole or stays as a whole.
!macro CLEAR_PROGRAM_FILES UN
  StrCpy $R0 0
  ${Do}
    Call ${UN}EndOwnProcesses
    RMDir /r "$INSTDIR\_internal.old"
    Rename "$INSTDIR\_internal" "$INSTDIR\_internal.old"
    ${IfNot} ${FileExists} "$INSTDIR\_internal\*.*"
      Delete "$INSTDIR\${EXE}"
      RMDir /r "$INSTDIR\_internal.old"
    ${EndIf}
    ${IfNot} ${FileExists} "$INSTDIR\${EXE}"
    ${AndIfNot} ${FileExists} "$INSTDIR\_internal\*.*"
      ${Break}
    ${EndIf}
    IntOp $R0 $R0 + 1
    ${If} $R0 > 10
      MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "$(STILL_OPEN)" /SD IDCANCEL IDRETRY +3
      SetErrorLevel 2
      Abort
    ${EndIf}
    Sleep 500
  ${Loop}
  ClearErrors
!macroend

; === Install ==================================================================

Section
  SetShellVarContext current
  !insertmacro CLEAR_PROGRAM_FILES ""
  SetOutPath "$INSTDIR"
  File /r "${PAYLOAD}/*"
  File "menu.cmd"
  WriteUninstaller "$INSTDIR\uninstall.exe"

  WriteRegStr HKCU "${UNINSTALL_KEY}" DisplayName "${PROGRAM}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" DisplayVersion "${VERSION}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" DisplayIcon "$INSTDIR\${EXE}"
  WriteRegStr HKCU "${UNINSTALL_KEY}" Publisher "${PROGRAM} contributors"
  WriteRegStr HKCU "${UNINSTALL_KEY}" InstallLocation "$INSTDIR"
  WriteRegStr HKCU "${UNINSTALL_KEY}" UninstallString '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${UNINSTALL_KEY}" QuietUninstallString '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" EstimatedSize ${SIZE_KB}
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" NoModify 1
  WriteRegDWORD HKCU "${UNINSTALL_KEY}" NoRepair 1

  ; An upgrade in another language leaves no second set of entries
  RMDir /r "$SMPROGRAMS\${PROGRAM}"
  CreateDirectory "$SMPROGRAMS\${PROGRAM}"
  !macro ENTRY NAME WORDS
    CreateShortCut "$SMPROGRAMS\${PROGRAM}\$(${NAME}).lnk" "$INSTDIR\menu.cmd" "${WORDS}" "$INSTDIR\${EXE}" 0
  !macroend
  !insertmacro ENTRY MENU_BROWSE "browse"
  !insertmacro ENTRY MENU_CHECK "doctor"
  !insertmacro ENTRY MENU_FORGET "forget"
  CreateShortCut "$SMPROGRAMS\${PROGRAM}\$(MENU_REMOVE).lnk" "$INSTDIR\uninstall.exe"

  ; cmd, because nsExec would read the program's UTF-8 in the system's old code page
  DetailPrint "$(SETTING_UP)"
  nsExec::Exec '"$SYSDIR\cmd.exe" /d /c ""$INSTDIR\${EXE}" mcp install >"$INSTDIR\install.log" 2>&1"'
  Pop $0
  ${If} $0 == 0
    StrCpy $OutcomeTitle "$(DONE_TITLE)"
    StrCpy $OutcomeText "$(DONE_TEXT)"
  ${Else}
    StrCpy $OutcomeTitle "$(HALF_TITLE)"
    StrCpy $OutcomeText "$(HALF_TEXT)"
    SetErrorLevel 3
  ${EndIf}
SectionEnd

; === Uninstall ================================================================

Section Uninstall
  SetShellVarContext current
  nsExec::Exec '"$INSTDIR\${EXE}" mcp uninstall'
  Pop $0
  !insertmacro CLEAR_PROGRAM_FILES "un."
  Delete "$INSTDIR\menu.cmd"
  Delete "$INSTDIR\install.log"
  Delete "$INSTDIR\uninstall.exe"
  RMDir "$INSTDIR" ; only when it is empty: what a person put there stays
  RMDir /r "$SMPROGRAMS\${PROGRAM}"
  DeleteRegKey HKCU "${UNINSTALL_KEY}"
  ${If} ${FileExists} "$PROFILE\.claude-code\memory\*.*"
    MessageBox MB_OK|MB_ICONINFORMATION "$(KEPT_TEXT)$\r$\n$\r$\n$PROFILE\.claude-code\memory$\r$\n$\r$\n$(KEPT_HINT)" /SD IDOK
  ${EndIf}
SectionEnd
