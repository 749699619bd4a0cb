; What a person reads, in four languages. The Start menu's names are part of it.
; A language that does not say everything is a warning, and warnings end the build.

!macro SAY NAME ENGLISH KOREAN JAPANESE CHINESE
  LangString ${NAME} ${LANG_ENGLISH} "${ENGLISH}"
  LangString ${NAME} ${LANG_KOREAN} "${KOREAN}"
  LangString ${NAME} ${LANG_JAPANESE} "${JAPANESE}"
  LangString ${NAME} ${LANG_SIMPCHINESE} "${CHINESE}"
!macroend

!insertmacro SAY WELCOME_TEXT \
  "code-memory keeps your past coding sessions on this computer and lets Claude Desktop search them.$\r$\n$\r$\nNothing leaves this computer. No administrator is needed.$\r$\n$\r$\nIf Claude Desktop is open, please quit it first (right-click its icon near the clock, then Quit)." \
  "code-memory는 지난 코딩 대화를 이 컴퓨터에 보관하고 Claude Desktop이 검색할 수 있게 합니다.$\r$\n$\r$\n아무것도 컴퓨터 밖으로 나가지 않습니다. 관리자 권한은 필요 없습니다.$\r$\n$\r$\nClaude Desktop이 열려 있으면 먼저 종료해 주세요(시계 옆 아이콘을 마우스 오른쪽 단추로 누르고 종료)." \
  "code-memory は過去のコーディングの会話をこのコンピューターに保管し、Claude Desktop から検索できるようにします。$\r$\n$\r$\nデータが外に出ることはありません。管理者の権限は不要です。$\r$\n$\r$\nClaude Desktop が開いている場合は、先に終了してください(時計の近くのアイコンを右クリックして「終了」)。" \
  "code-memory 把您过去的编程对话保存在这台电脑上，并让 Claude Desktop 可以搜索它们。$\r$\n$\r$\n任何内容都不会离开这台电脑，也不需要管理员权限。$\r$\n$\r$\n如果 Claude Desktop 已打开，请先退出它（右键单击时钟旁的图标，然后选择退出）。"

!insertmacro SAY SETTING_UP \
  "Setting up Claude Desktop and reading your past sessions. This can take a few minutes." \
  "Claude Desktop을 설정하고 지난 대화를 읽고 있습니다. 몇 분 걸릴 수 있습니다." \
  "Claude Desktop を設定し、過去の会話を読み込んでいます。数分かかることがあります。" \
  "正在设置 Claude Desktop 并读取您过去的会话，可能需要几分钟。"

!insertmacro SAY DONE_TITLE \
  "code-memory is ready" \
  "code-memory를 사용할 준비가 되었습니다" \
  "code-memory の準備ができました" \
  "code-memory 已准备就绪"

!insertmacro SAY DONE_TEXT \
  "Quit Claude Desktop and open it again. Then ask, for example:$\r$\n$\r$\n$\"What did I work on last week?$\"$\r$\n$\r$\nThe Start menu has a folder $\"code-memory$\" to look through your memories, to check that everything works, and to remove it." \
  "Claude Desktop을 종료했다가 다시 여세요. 그리고 이렇게 물어보세요.$\r$\n$\r$\n$\"지난주에 내가 무슨 작업을 했지?$\"$\r$\n$\r$\n시작 메뉴의 $\"code-memory$\" 폴더에서 기억을 살펴보고, 잘 동작하는지 확인하고, 제거할 수 있습니다." \
  "Claude Desktop をいったん終了し、もう一度開いてください。そして、たとえばこう聞いてみてください。$\r$\n$\r$\n「先週は何の作業をしていた?」$\r$\n$\r$\nスタート メニューの「code-memory」フォルダーから、記憶を見る、動作を確認する、削除することができます。" \
  "请退出 Claude Desktop，然后重新打开，并试着提问：$\r$\n$\r$\n“我上周做了什么？”$\r$\n$\r$\n开始菜单中的“code-memory”文件夹可用来查看记忆、检查是否正常工作以及卸载。"

!insertmacro SAY HALF_TITLE \
  "Installed, but Claude Desktop is not set up yet" \
  "설치했지만 Claude Desktop은 아직 설정되지 않았습니다" \
  "インストールしましたが、Claude Desktop の設定はまだです" \
  "已安装，但 Claude Desktop 尚未设置好"

!insertmacro SAY HALF_TEXT \
  "code-memory is on this computer, but Claude Desktop's settings could not be changed. They are as they were. The report says why.$\r$\n$\r$\nWhen that is mended, run this installer once more." \
  "code-memory는 설치되었지만 Claude Desktop의 설정을 바꿀 수 없었습니다. 설정은 그대로 있습니다. 까닭은 보고서에 있습니다.$\r$\n$\r$\n고친 다음 이 설치 프로그램을 다시 실행해 주세요." \
  "code-memory はインストールされましたが、Claude Desktop の設定を変更できませんでした。設定は元のままです。理由は報告に書かれています。$\r$\n$\r$\n直したあとで、このインストーラーをもう一度実行してください。" \
  "code-memory 已安装，但无法更改 Claude Desktop 的设置，设置保持原样。原因写在报告里。$\r$\n$\r$\n解决之后，请再次运行此安装程序。"

!insertmacro SAY SHOW_REPORT \
  "Show the report" \
  "보고서 보기" \
  "報告を表示する" \
  "查看报告"

!insertmacro SAY STILL_OPEN \
  "Some files of code-memory are still in use. Quit Claude Desktop, then choose Retry." \
  "code-memory의 파일이 아직 사용 중입니다. Claude Desktop을 종료한 다음 다시 시도를 누르세요." \
  "code-memory のファイルがまだ使用中です。Claude Desktop を終了してから「再試行」を選んでください。" \
  "code-memory 的部分文件仍在使用中。请退出 Claude Desktop，然后选择重试。"

!insertmacro SAY KEPT_TEXT \
  "code-memory was removed. Your memories were kept; they are in this folder:" \
  "code-memory를 제거했습니다. 기억은 그대로 남아 있으며, 다음 폴더에 있습니다." \
  "code-memory を削除しました。記憶は残してあり、次のフォルダーにあります。" \
  "code-memory 已卸载。您的记忆已保留，位于以下文件夹："

!insertmacro SAY KEPT_HINT \
  "Delete that folder if you do not want them any more." \
  "더 이상 필요하지 않으면 그 폴더를 지우세요." \
  "不要になったら、このフォルダーを削除してください。" \
  "如果不再需要，请删除该文件夹。"

!insertmacro SAY MENU_BROWSE "Browse memories" "기억 살펴보기" "記憶を見る" "浏览记忆"
!insertmacro SAY MENU_CHECK "Check that it works" "잘 동작하는지 확인" "動作を確認する" "检查是否正常"
!insertmacro SAY MENU_FORGET "Forget memories" "기억 지우기" "記憶を消す" "忘记记忆"
!insertmacro SAY MENU_REMOVE "Remove code-memory" "code-memory 제거" "code-memory を削除" "卸载 code-memory"
